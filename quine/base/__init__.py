"""base: what every other room stands on: errors, text, sizes, the log, processes, files written aside."""
