"""A shop's support desk: customers write, the agent looks into a database and closes the ticket."""
