mkdir src && echo hello >src/hello
printf 'app.txt: src/hello\n\tcp src/hello app.txt\n' >Makefile
printf 'monday,12\ntuesday,91\nwednesday,15\n' >data.csv
