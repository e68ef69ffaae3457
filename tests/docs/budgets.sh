seq 100 >book.txt
printf 'ERROR\nWARN\nERROR\n' >app.log
