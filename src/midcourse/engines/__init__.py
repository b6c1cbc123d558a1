"""Who writes tokens: an embedded model, a server, or a script. Import the one file that is needed."""
