"""The gateway: a request becomes a Question, a strategy makes a Choice of it, and the Choice becomes a reply."""
