# Circles of a directed graph. Input: lines "FROM TO"; an edge from a node to itself does not count.
# The first circle that is found is printed, and the exit status is 1 then.

function visit(node,    i, count, next_nodes, text) { # depth first; true if a circle was printed
    color[node] = 1
    path[++depth] = node
    count = split(out[node], next_nodes, " ")
    for (i = 1; i <= count; i++) {
        if (color[next_nodes[i]] == 1) {
            text = next_nodes[i]
            for (count = depth; path[count] != next_nodes[i]; count--) text = path[count] " -> " text
            print "circle: " next_nodes[i] " -> " text
            return 1
        }
        if (!color[next_nodes[i]] && visit(next_nodes[i])) return 1
    }
    depth--
    color[node] = 2
    return 0
}

$1 != $2 && !(($1, $2) in edge) {
    edge[$1, $2] = 1
    if (!($1 in out)) order[++n_nodes] = $1
    out[$1] = out[$1] " " $2
}

END {
    for (i = 1; i <= n_nodes; i++)
        if (!color[order[i]] && visit(order[i])) exit 1
}
