"""Many jobs by one command, beside what people use today: over four hosts, a long line, fifty hosts, a thousand."""
