quine deploy gpu1 >/dev/null
cat >broken.toml <<'END'
[hosts.gpu9]
address = "gpu9.invalid"
user = "ada"
END
