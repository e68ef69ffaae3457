"""budget: `quine budget`: a command with a purse for all agents below it (`main`, `running`); purses shown (`listing`)
and raised (`raising`)."""
