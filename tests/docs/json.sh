echo ERROR >app.log
