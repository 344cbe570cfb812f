"""Consumer, Lease and Admission: batches for learners that share the work."""
