// The last message of a process that reads a mapped file of which a part is gone.
#pragma once

#include <string>

namespace strata {

// Installs a SIGBUS handler: when a page of a mapped file cannot be read, because the file became
// shorter or its disk failed, the process still ends by SIGBUS, but first writes a message to
// standard error that names `path` and says what to do. Of several files, the last one reported is
// named. One thread at a time.
void ReportLostPages(const std::string& path);

}  // namespace strata
