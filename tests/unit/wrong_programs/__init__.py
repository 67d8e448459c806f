"""Wrong programs as beginners write them, with the messages that they get."""
