"""top: a live view of all that runs: it is looked for (`look`), laid out (`draw`), and put on a terminal (`screen`)."""
