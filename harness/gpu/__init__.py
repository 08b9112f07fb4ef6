"""Everything that a GPU can tell, in parts that fit into minutes; rehearsed where there is none. ``parts.PARTS`` lists them.

A part is a module with ``items(place)``: what it measures, item by item. Each item is kept as soon as it is there, in one file
a part, and a later call goes on from these files (``session.run``). ``page`` writes what they say, with the goals of ``goals``.
"""
