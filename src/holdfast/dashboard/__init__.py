"""What is live on this machine, for people who look: in a terminal, in a browser, in a report."""
