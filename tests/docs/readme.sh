. "$(dirname "${BASH_SOURCE[0]}")/pipelines.sh"
printf 'monday,12\ntuesday,91\nwednesday,15\n' >data.csv
for n in 1 2 3; do echo "page $n" >$n.txt; done
