# Circles of a directed graph. Input: lines "known A B" and "edge A B", known ones first.
# Edges that are known to be part of a circle are taken out; each must still be part of one. Without them there must be no
# circle: the first one found is printed. The exit status is 1 if there was something to print.

function visit(node,    i, count, next_nodes, text) { # depth first; true if a circle was printed
    color[node] = 1
    path[++depth] = node
    count = split(out[node], next_nodes, " ")
    for (i = 1; i <= count; i++) {
        if ((node, next_nodes[i]) in known) continue
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

function reaches(from, to,    queue, head, tail, seen, count, next_nodes, i) {
    queue[tail = 1] = from
    for (head = 1; head <= tail; head++) {
        if (queue[head] == to) return 1
        count = split(out[queue[head]], next_nodes, " ")
        for (i = 1; i <= count; i++)
            if (!(next_nodes[i] in seen)) {
                seen[next_nodes[i]] = 1
                queue[++tail] = next_nodes[i]
            }
    }
    return 0
}

$1 == "known" { known[$2, $3] = 1; known_from[++n_known] = $2; known_to[n_known] = $3; next }
$2 != $3 && !(($2, $3) in edge) {
    edge[$2, $3] = 1
    if (!($2 in out)) order[++n_nodes] = $2
    out[$2] = out[$2] " " $3
}

END {
    failed = 0
    for (i = 1; i <= n_known; i++) {
        if (!((known_from[i], known_to[i]) in edge)) {
            print known_from[i] " no longer depends on " known_to[i] ": take it off the list of known circles"
            failed = 1
        } else if (!reaches(known_to[i], known_from[i])) {
            print known_from[i] " -> " known_to[i] " is no longer part of a circle: take it off the list of known circles"
            failed = 1
        }
    }
    for (i = 1; i <= n_nodes; i++)
        if (!color[order[i]] && visit(order[i])) exit 1
    exit failed
}
