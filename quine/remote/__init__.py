"""remote: agents on other machines: the process that stands for one here, and what the origin answers it."""
