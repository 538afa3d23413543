"""Those who see everything and change nothing: record, checkpoint, progress, and the session that drives them."""
