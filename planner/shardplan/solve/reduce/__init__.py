"""Exact reductions, each with a way back. In the order in which they run:

    sums        sums of maxima become sums over nodes (`apply`, `invert`)
    graph       the working copy: equal tables share a number, a postsolve stack leads back (`Graph.invert`)
    memory      moments that cannot bind and choices that cannot fit
    aggregate   nodes that a neighbour determines are merged into it
    eliminate   nodes without memory and with at most two neighbours are minimised out
    dominate    choices that another one beats whatever happens
    fixing      choices and pairs that cost more than a bound allows (reduced-cost fixing)

`presolve` repeats those in the middle until nothing changes; `core` is what they leave, in flat arrays.
"""
