"""Steps that change text: each leaves what it did in the edits table, and a new text version that all later steps read."""
