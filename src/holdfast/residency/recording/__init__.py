"""What happened to weights when, and the page that shows it."""
