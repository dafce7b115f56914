// Entries of an mlx5 work queue as programs build them in memory (infiniband/mlx5dv.h), read without trust: what is not as the
// device wants it is a complaint, never an access beyond the queue.
//
// A send entry: control segment, Ethernet segment with the inlined headers, then data segments, each pointers or inlined bytes.
// It covers whole blocks of 64 bytes, may go on at the queue's start, and says how many segments of 16 bytes it has (ds).
#pragma once

#include <infiniband/mlx5dv.h>

#include <cstdint>
#include <span>
#include <string>

#include "base/bytes.h"

namespace softhca::mlx5 {

constexpr uint32_t kBlock = 64, kSegment = 16, kMostSegments = 63;

// Strict finds everything that is not as it has to be; fast what the device could not carry out.
enum class Check : uint8_t { strict, fast };

// What the entry is compared with.
struct SendRules {
    uint32_t qp = 0;
    uint32_t max_frame = 0;  // Ethernet header included
    uint32_t max_tso = 0;    // headers included; 0: no segmentation
    bool checksum = true;    // the device makes them
    Check check = Check::strict;
};

// Why an entry is refused, and what its completion says. `what` null: it is good.
struct Complaint {
    const char* what = nullptr;
    uint8_t syndrome = 0;  // MLX5_CQE_SYNDROME_...
    explicit operator bool() const { return what != nullptr; }
};

struct SendRequest {
    // Bytes of `wqe` (key 0), or of memory that a key gives.
    struct Piece {
        uint64_t at;
        uint32_t length, key;
        bool inlined;
    };
    uint8_t opcode = MLX5_OPCODE_NOP;
    bool signalled = false, checksum = false;
    uint16_t blocks = 1;
    uint16_t mss = 0;      // TSO
    uint32_t headers = 0;  // TSO: bytes of the first piece
    uint64_t bytes = 0;    // of all pieces
    uint32_t pieces_count = 0;
    Piece pieces[kMostSegments];
    uint8_t wqe[kMostSegments * kSegment];  // the entry, in one piece
};

// Reads the entry at block number `at` (free running) of a queue of `queue.size() / kBlock` blocks, a power of two; the program has
// written up to block number `end`. *out is filled as far as it was read; blocks is at least 1.
Complaint read_send(vma::ByteView queue, uint16_t at, uint16_t end, const SendRules& rules,
                    SendRequest* out);

// Pieces of memory of a receive entry of `stride` bytes: until its end, or a key of MLX5_INVALID_LKEY.
struct ReceiveRequest {
    uint32_t pieces_count = 0;
    SendRequest::Piece pieces[32];
};
Complaint read_receive(vma::ByteView entry, Check check, ReceiveRequest* out);

// The segments of an entry as text, a line each, for whoever has to find out what is wrong with it.
std::string describe_send(vma::ByteView queue, uint16_t at);
std::string describe_receive(vma::ByteView entry);

}  // namespace softhca::mlx5
