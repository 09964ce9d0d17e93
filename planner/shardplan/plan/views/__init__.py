"""Views of a finished plan, from its values alone: timeline, lifetimes, breakdown, segments, tables, graph."""
