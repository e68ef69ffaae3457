mkdir -p "$HOME_db1/logs"
trap 'rm -r "$HOME_db1/logs"' EXIT
cat >"$HOME_db1/logs/queries.log" <<END
12 ms users SELECT name
860 ms orders SELECT sum
852 ms orders SELECT max
940 ms users SELECT email
31 ms carts SELECT 1
END
