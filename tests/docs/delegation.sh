printf 'monday,12\ntuesday,91\nwednesday,15\n' >data.csv
