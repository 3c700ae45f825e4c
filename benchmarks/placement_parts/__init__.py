"""What the benchmark of the exact placer is made of: instances, peers, and a table of proofs."""
