mkdir -p "$HOME_db1/logs" && touch "$HOME_db1/logs/queries.log"
trap 'rm -r "$HOME_db1/logs"' EXIT
