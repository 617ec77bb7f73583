#include "transport/base/thread_name.h"

#include <pthread.h>

namespace strata {

void NameThread(const char* name) {
#ifdef __linux__
  pthread_setname_np(pthread_self(), name);
#else
  (void)name;
#endif
}

}  // namespace strata
