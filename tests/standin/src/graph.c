/* Graphs as captures make them: nodes in order, and their replay. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void list_add(NodeList *list, Node *node)
{
    for (size_t index = 0; index < list->count; index++)
        if (list->items[index] == node)
            return;
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 4;
        list->items = realloc(list->items, list->room * sizeof *list->items);
    }
    list->items[list->count++] = node;
}

void list_copy(NodeList *target, const NodeList *source)
{
    list_clear(target);
    for (size_t index = 0; index < source->count; index++)
        list_add(target, source->items[index]);
}

void list_clear(NodeList *list)
{
    free(list->items);
    memset(list, 0, sizeof *list);
}

Graph *graph_new(void)
{
    return handle_new(GRAPH, sizeof(Graph));
}

Node *graph_add(Graph *graph, int type, const NodeList *before)
{
    Node *node = handle_new(NODE, sizeof *node);
    node->type = type;
    node->graph = graph;
    if (before)
        list_copy(&node->before, before);
    list_add(&graph->nodes, node);
    return node;
}

EXPORT CUresult cuGraphCreate(CUgraph *out, unsigned flags)
{
    ENTER(cuGraphCreate);
    REQUIRE(out && flags == 0, INVALID_VALUE);
    *out = graph_new();
    return SUCCESS;
}

/* Nodes stay: what was instantiated from the graph still replays them. */
EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    ENTER(cuGraphDestroy);
    LOCKED;
    REQUIRE(handle_is(graph, GRAPH), INVALID_VALUE);
    list_clear(&graph->nodes);
    graph->handle.alive = 0;
    return SUCCESS;
}

static CUresult give_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count, int roots)
{
    LOCKED;
    REQUIRE(handle_is(graph, GRAPH) && count, INVALID_VALUE);
    size_t found = 0;
    for (size_t index = 0; index < graph->nodes.count; index++) {
        Node *node = graph->nodes.items[index];
        if (roots && node->before.count)
            continue;
        if (nodes && found < *count)
            nodes[found] = node;
        found++;
    }
    for (size_t index = found; nodes && index < *count; index++)
        nodes[index] = NULL;
    *count = found;
    return SUCCESS;
}

EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    ENTER(cuGraphGetNodes);
    return give_nodes(graph, nodes, count, 0);
}

EXPORT CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    ENTER(cuGraphGetRootNodes);
    return give_nodes(graph, nodes, count, 1);
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
    ENTER(cuGraphNodeGetType);
    REQUIRE(handle_is(node, NODE) && type, INVALID_VALUE);
    *type = node->type;
    return SUCCESS;
}

EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count)
{
    ENTER(cuGraphAddEmptyNode);
    LOCKED;
    REQUIRE(out && handle_is(graph, GRAPH), INVALID_VALUE);
    NodeList list = {(CUgraphNode *)before, count, count};
    *out = graph_add(graph, NODE_EMPTY, &list);
    return SUCCESS;
}

EXPORT CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned flags)
{
    (void)flags;
    ENTER(cuGraphDebugDotPrint);
    LOCKED;
    REQUIRE(handle_is(graph, GRAPH) && path, INVALID_VALUE);
    FILE *file = fopen(path, "w");
    REQUIRE(file, OPERATING_SYSTEM);
    fprintf(file, "digraph dot {\n");
    for (size_t index = 0; index < graph->nodes.count; index++) {
        Node *node = graph->nodes.items[index];
        fprintf(file, "\"%p\" [label=\"type %d\"];\n", (void *)node, node->type);
        for (size_t before = 0; before < node->before.count; before++)
            fprintf(file, "\"%p\" -> \"%p\";\n", (void *)node->before.items[before], (void *)node);
    }
    fprintf(file, "}\n");
    fclose(file);
    return SUCCESS;
}

/* ---- instantiated ---- */

static CUresult instantiate(CUgraphExec *out, CUgraph graph, uint64_t flags)
{
    LOCKED;
    REQUIRE(out && handle_is(graph, GRAPH), INVALID_VALUE);
    CHECK(capture_unsafe());
    Exec *exec = handle_new(EXEC, sizeof *exec);
    exec->flags = flags;
    list_copy(&exec->nodes, &graph->nodes);
    *out = exec;
    return SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    ENTER(cuGraphInstantiateWithFlags);
    return instantiate(out, graph, flags);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, InstantiateParams *params)
{
    ENTER(cuGraphInstantiateWithParams);
    REQUIRE(params, INVALID_VALUE);
    params->error_node = NULL;
    params->result = 0;
    return instantiate(out, graph, params->flags);
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    ENTER(cuGraphExecDestroy);
    LOCKED;
    REQUIRE(handle_is(exec, EXEC), INVALID_VALUE);
    list_clear(&exec->nodes);
    exec->handle.alive = 0;
    return SUCCESS;
}

EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream handle)
{
    Stream *stream;
    ENTER(cuGraphUpload);
    REQUIRE(handle_is(exec, EXEC), INVALID_VALUE);
    return stream_resolve(handle, &stream);
}

static CUresult replay_all(const NodeList *nodes, Stream *stream)
{
    for (size_t index = 0; index < nodes->count; index++)
        if (nodes->items[index]->replay)
            CHECK(nodes->items[index]->replay(nodes->items[index], stream));
    return SUCCESS;
}

enum { NODE_GRAPH = 4 };

static CUresult replay_graph(Node *node, Stream *stream)
{
    const Exec *exec = (const Exec *)(uintptr_t)node->words[0];
    return replay_all(&exec->nodes, stream);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
    Stream *stream;
    Node *node;
    ENTER(cuGraphLaunch);
    REQUIRE(handle_is(exec, EXEC), INVALID_VALUE);
    CHECK(stream_resolve(handle, &stream));
    CHECK(capture_legacy(stream));
    CHECK(capture_node(stream, NODE_GRAPH, &node));
    if (!node)
        return replay_all(&exec->nodes, stream);
    node->replay = replay_graph;
    node->words[0] = (uintptr_t)exec;
    return SUCCESS;
}
