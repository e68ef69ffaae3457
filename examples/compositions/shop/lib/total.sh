# total: the sum of the prices on stdin, in cents, one a line
total() {
  awk '{ sum = $1 } END { print sum + 0 }'
}
