#include "stack/tcp/messages.h"

#include "stack/tcp/tcp.h"

namespace vma::tcp {

void end_message(Tcb& t) {
    if (t.marks == nullptr || t.marks->count == MessageMarks::kMost) return;
    const Seq end = t.write_seq(), before = t.marks->count ? t.marks->back() : t.snd.nxt;
    if (before < end) t.marks->push(end);
}

void follow_messages(Tcb& t) {
    if (t.cfg.messages == (t.marks != nullptr)) return;
    if (t.cfg.messages) {
        t.marks = t.memory->take_marks();
        end_message(t);
    } else {
        t.memory->give_marks(t.marks);
        t.marks = nullptr;
    }
}

bool has_message_room(Tcb& t) {
    follow_messages(t);
    return t.marks != nullptr && t.marks->count < MessageMarks::kMost;
}

bool pass_messages(Tcb& t, Seq end) {
    bool ends = false;
    while (t.marks->count && t.marks->front() <= end) {
        ends = t.marks->front() == end;
        t.marks->pop();
    }
    return ends;
}

void carry_messages(Tcb& t, const Tcb& from) {
    follow_messages(t);
    if (t.marks != nullptr && from.marks != nullptr) *t.marks = *from.marks;
}

}  // namespace vma::tcp
