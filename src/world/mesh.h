/*
 * mesh.h - the wire over stream sockets: a connection between every two processes, and one more for
 * bulk moves.
 */
#ifndef EK_MESH_H
#define EK_MESH_H

#include "world/wire.h"

/*
 * Makes a wire of connected sockets, which it closes, also if it fails: sockets[p] leads to process
 * p, and so does bulk[p]; those of this process are not looked at. `bulk` may be NULL: then there
 * are no bulk moves, and nothing wakes wait(). TCP, or another kind of stream.
 */
ek_status ek__mesh_make(struct ek__wire *wire, size_t process, size_t processes,
                        const int *sockets, const int *bulk);

#endif /* EK_MESH_H */
