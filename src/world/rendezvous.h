/*
 * rendezvous.h - how processes that know where process 0 is get a connection between every two.
 */
#ifndef EK_RENDEZVOUS_H
#define EK_RENDEZVOUS_H

#include "world/address.h"
#include "world/wire.h"

enum { EK__TOKEN = 32, EK__WIRES = 2 };

/* Where process 0 listens, and what the processes of a job know and no other process does. */
struct ek__host {
  struct ek__places at;
  unsigned char token[EK__TOKEN];
};

struct ek__meeting {
  size_t process, processes;
  size_t wires; /* to make: 1, or EK__WIRES; then the first wire has bulk moves */
  const char *address; /* of this process: ek__place_own(); NULL: the one that reaches process 0 */
  double limit;        /* seconds */
  void *context;
  /*
   * Process 0: opens a socket that listens and says where; then tells the others, in whatever way.
   * It is called once.
   */
  ek_status (*announce)(void *context, int *listener, struct ek__place *place,
                        unsigned char token[EK__TOKEN]);
  /* (optional) process 0, when all have come, or not */
  void (*withdraw)(void *context);
  /* The others: where process 0 is, as far as it is known now. It is called before each attempt;
   * EK_ERR_NOT_FOUND: not yet. */
  ek_status (*find)(void *context, struct ek__host *host);
};

/*
 * Meets, and makes meshes between the processes. EK_ERR_UNAVAILABLE: not all came before the limit;
 * in process 0, and in all that have come to it, the message names those that did not, and the
 * place where they were waited for.
 */
ek_status ek__meet(struct ek__wire *wires, const struct ek__meeting *meeting);

/* The token of a job, of some texts that its processes have in common. */
void ek__token_make(unsigned char token[EK__TOKEN], const char *const *texts, size_t count);

#endif /* EK_RENDEZVOUS_H */
