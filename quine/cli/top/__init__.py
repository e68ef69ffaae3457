"""top: what runs, live: looked for (`look`), laid out as text (`draw`), and shown on a terminal (`screen`)."""
