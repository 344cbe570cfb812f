"""EpisodeWriter and StepWriter: steps are gathered, and written once whatever happens."""
