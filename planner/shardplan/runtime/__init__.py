"""A plan where it is used: what every device holds, under which names, and what it will send. No framework, and no
numpy before an array is touched."""
