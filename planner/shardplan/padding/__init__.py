"""Models in which a size is held as if it were larger, so that axes divide it: the last shards are padded."""
