// What the socket layer writes into the statistics page (stats/publisher.h). Sockets that are objects have their rows with
// them; those that went to the kernel at birth are none, and no hook looks at them any more: they have a row by descriptor
// number, replaced when the number is used for a new socket. In between the row may outlive the socket; a viewer drops it
// because the inode is gone.
//
// A TCP socket gets its row when it is connected, listens or goes to the kernel, an accepted one when a viewer asks first:
// accept and close of short connections make no system call for us.
#pragma once

#include <string_view>

#include "base/log.h"
#include "base/reason.h"

namespace vma::sock {

// Where the page goes, from the options in force. Cheap when done.
void stats_start(const char* program);
// `fd` is a kernel socket for good and no object, because of `why`; protocol 0: the default one of `type`.
void stats_kernel_socket(int fd, int domain, int type, int protocol, Reason why);
// `fd` got an object: what was known about the number is old.
void stats_object_made(int fd);
// Rings opened since get their rows, without figures yet. Before a socket's row that names them.
void stats_show_rings();
// Internal thread, every turn: counters and rings, when a viewer asks.
void stats_tick();
// States and addresses of every object once more, after the page was given up for an exec that failed.
void stats_republish();
void stats_forget_in_child();

class Socket;
// The program has closed `socket`, whose control lock is held: its numbers into VMA_STATS_FILE, and into the log at debug.
void stats_closed(Socket& socket);
void stats_file_forget_in_child();
// A block of lines into VMA_STATS_FILE, behind the line that separates blocks, and into the log at `level`.
void stats_report(std::string_view block, LogLevel level);
// The process ends: what memory each ring had, as such blocks. In the log, too, of one that ran short, else at debug only.
void stats_report_memory();
// The process ends: the last line of VMA_STATS_FILE.
void stats_end();

}  // namespace vma::sock
