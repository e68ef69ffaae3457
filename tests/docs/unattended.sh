mkdir store
printf 'WARN slow\nERROR late\nERROR late\n' >app.log
