/* mlx5_queues DEVICE: one NOP through the queues that mlx5dv_init_obj(3) shows, with no call of the library between the doorbell
 * and its completion. Prints "completed" with what the completion says. */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void must(int good, const char* what) {
    if (good) return;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static struct ibv_device* device_called(const char* name) {
    struct ibv_device** list = ibv_get_device_list(NULL);
    for (int i = 0; list && list[i]; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name)) return list[i];
    fprintf(stderr, "no device %s\n", name);
    exit(1);
}

int main(int argc, char** argv) {
    must(argc == 2, "usage");
    struct ibv_device* device = device_called(argv[1]);
    if (!mlx5dv_is_supported(device)) {
        puts("not mlx5");
        return 0;
    }
    struct ibv_context* context = mlx5dv_open_device(device, NULL);
    must(context != NULL, "opening the device");
    struct mlx5dv_context facts = {0};
    must(mlx5dv_query_device(context, &facts) == 0 && (facts.flags & MLX5DV_CONTEXT_FLAGS_CQE_V1),
         "device");
    struct ibv_pd* pd = ibv_alloc_pd(context);
    struct ibv_cq* cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    must(pd && cq, "completion queue");
    struct ibv_qp_init_attr wanted = {
        .send_cq = cq, .recv_cq = cq, .cap = {16, 16, 1, 1, 64}, .qp_type = IBV_QPT_RAW_PACKET};
    struct ibv_qp* qp = ibv_create_qp(pd, &wanted);
    must(qp != NULL, "queue pair");
    struct ibv_qp_attr attr = {.port_num = 1};
    for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
        attr.qp_state = (enum ibv_qp_state)state;
        must(
            ibv_modify_qp(qp, &attr, IBV_QP_STATE | (state == IBV_QPS_INIT ? IBV_QP_PORT : 0)) == 0,
            "state");
    }
    struct mlx5dv_qp queue;
    struct mlx5dv_cq completions;
    memset(&queue, 0, sizeof queue);
    memset(&completions, 0, sizeof completions);
    struct mlx5dv_obj objects = {.qp = {qp, &queue}, .cq = {cq, &completions}};
    must(mlx5dv_init_obj(&objects, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ) == 0, "queues");
    mlx5dv_set_ctrl_seg(queue.sq.buf, 0, MLX5_OPCODE_NOP, 0, qp->qp_num, MLX5_WQE_CTRL_CQ_UPDATE, 1,
                        0, 0);
    __atomic_store_n(&queue.dbrec[MLX5_SND_DBR], htonl(1), __ATOMIC_RELEASE);
    unsigned long long words;
    memcpy(&words, queue.sq.buf, sizeof words);
    __atomic_store_n((unsigned long long*)queue.bf.reg, words, __ATOMIC_RELEASE);
    struct mlx5_cqe64* cqe = completions.buf;
    const time_t end = time(NULL) + 20;
    while (mlx5dv_get_cqe_owner(cqe) != 0 || mlx5dv_get_cqe_opcode(cqe) == MLX5_CQE_INVALID)
        must(time(NULL) < end, "no completion");
    printf("completed opcode %d counter %d\n", mlx5dv_get_cqe_opcode(cqe), ntohs(cqe->wqe_counter));
    must(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 &&
             ibv_close_device(context) == 0,
         "end");
    return 0;
}
