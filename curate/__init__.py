"""Text in, rows out: read, signals, rules, dedup, tokenize, pack, plan."""
