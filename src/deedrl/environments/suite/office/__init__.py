"""A clerk's desk: mails come in, an internal interface knows the facts, and a form is filled in for each request."""
