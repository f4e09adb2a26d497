"""Who is taken, who is next and who waits: checks of requests, orders, batching policies, load."""
