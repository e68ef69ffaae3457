# may NAME: is NAME one of the users?
may() {
  grep -q "^$1" users
}
