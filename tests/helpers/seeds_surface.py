"""The names of the five systems that pparallel grew from, with their parameters and defaults.

By module of ``pparallel.compat``: a function or class with what it takes, below a class what it
has. A name without parentheses is an attribute, a property, a constant or an exception. ``SUM`` is
``torch.distributed.ReduceOp.SUM``.
"""

from __future__ import annotations

SURFACE: dict[str, str] = {
    "machin.distributed": """
        World(name, rank=-1, world_size=-1, init_dist=True, init_rpc=True, dist_backend="gloo",
            dist_init_method="tcp://localhost:9100", rpc_init_method="tcp://localhost:9101",
            dist_timeout=60, rpc_timeout=60)
            stop()
            create_collective_group(ranks, timeout=60, backend=None)
            create_rpc_group(group_name, members)
            get_ranks()
            get_members()
            rank
            name
            world_size
        get_world()
        get_cur_rank()
        get_cur_name()
        is_world_initialized()
        RpcException
        CollectiveGroup(group, current_relative_rank)
            send(tensor, dst, tag=0)
            recv(tensor, src=None, tag=0)
            isend(tensor, dst, tag=0)
            irecv(tensor, src=None, tag=0)
            broadcast(tensor, src, async_op=False)
            all_reduce(tensor, op=SUM, async_op=False)
            reduce(tensor, dst, op=SUM, async_op=False)
            all_gather(tensor_list, tensor, async_op=False)
            gather(tensor, gather_list, dst=0, async_op=False)
            scatter(tensor, scatter_list=None, src=0, async_op=False)
            barrier(async_op=False)
            broadcast_multigpu(tensor_list, src, async_op=False, src_tensor=0)
            all_reduce_multigpu(tensor_list, op=SUM, async_op=False)
            reduce_multigpu(tensor_list, dst, op=SUM, async_op=False, dst_tensor=0)
            all_gather_multigpu(output_tensor_lists, input_tensor_list, async_op=False)
            destroy()
            size()
        RpcGroup(group_name, group_members, first_create=True)
            rpc_sync(to, func, timeout=-1, args=(), kwargs=None)
            rpc_async(to, func, timeout=-1, args=(), kwargs=None)
            remote(to, func, timeout=-1, args=(), kwargs=None)
            pair(key, value)
            unpair(key)
            is_paired(key)
            get_paired(key)
            register(key, service)
            deregister(key)
            is_registered(key)
            registered_sync(key, args=(), kwargs=None)
            registered_async(key, args=(), kwargs=None)
            registered_remote(key, args=(), kwargs=None)
            barrier()
            destroy()
            size()
            is_member(target=None)
            get_group_name()
            get_group_members()
            get_cur_name()
        """,
    "machin.server": """
        OrderedServerBase
            push(key, value, version, prev_version)
            pull(key, version=None)
        OrderedServerSimple(server_name, group)
            push(key, value, version, prev_version)
            pull(key, version=None)
        OrderedServerSimpleImpl(server_name, group, version_depth=1)
            _push_service
            _pull_service
        PushPullModelServer(model_name, o_server=None)
            push(model, pull_on_fail=True)
            pull(model)
        PushPullModelServerImpl(server_name, group, model_name="model", o_server=None)
        PushPullGradServer(server_name, group, model_name, secondary_reducers, o_server)
            push(model)
            pull(model)
        PushPullGradServerImpl(server_name, group, model_name="model", primary_reducer=None,
            secondary_reducers=None, o_server=None, reduce_method="sum", reduce_device="cpu",
            reduce_batch_size=4, max_queue_size=64)
            start()
            stop()
            watch()
            manage_model(model, optimizer, lr_scheduler=None)
            REDUCE_MASTER
            REDUCE_SLAVE
        """,
    "machin.assigner": """
        ModelSizeEstimator(model, size_multiplier=2)
            estimate_size()
            get_parameter_sizes()
            get_buffer_sizes()
        ModelAssigner(models, model_connection, devices=None, model_size_multiplier=2,
            max_mem_ratio=0.5, cpu_weight=0, connection_weight=2, size_match_weight=0.01,
            complexity_match_weight=1, entropy_weight=1, iterations=500, update_rate=0.01,
            gpu_gpu_distance=1, cpu_gpu_distance=10, move_models=True)
            assignment
            optimize_placement(optimizer, placement, model_size, size_capacity, model_complexity,
                complexity_capacity, model_connection, device_distance, connection_weight,
                size_match_weight, complexity_match_weight, entropy_weight)
        """,
    "machin.pickle": """
        Pickler(file, recurse=False, copy_tensor=False)
        dumps(obj, recurse=False, copy_tensor=True)
        loads
        mark_static_module(module)
        """,
    "machin.queue": """
        SimpleQueue(*, ctx=None, copy_tensor=False)
            get(timeout=None)
            put(obj)
            quick_get(timeout=None)
            quick_put(obj)
            empty()
            close()
        SimpleP2PQueue(*, copy_tensor=False)
        MultiP2PQueue(queue_num, *, copy_tensor=False)
            quick_put
            quick_get(timeout=None)
            get_sub_queue(index)
        TimeoutError
        """,
    "machin.pool": """
        PoolStates
            RUN
            CLOSE
            TERMINATE
        AsyncResult(job, cache, callback, error_callback)
            get(timeout=None)
            wait
            ready
            successful
        MapResult(job, cache, chunksize, length, callback, error_callback)
        IMapIterator(job, cache, length)
            next(timeout=None)
        IMapUnorderedIterator
        BasePool(processes=None, initializer=None, initargs=(), maxtasksperchild=None, context=None)
            apply(func, args=(), kwds=None)
            apply_async(func, args=(), kwds=None, callback=None, error_callback=None)
            map(func, iterable, chunksize=None)
            map_async(func, iterable, chunksize=None, callback=None, error_callback=None)
            starmap(func, iterable, chunksize=None)
            starmap_async(func, iterable, chunksize=None, callback=None, error_callback=None)
            imap(func, iterable, chunksize=1)
            imap_unordered(func, iterable, chunksize=1)
            close()
            terminate()
            join()
            size()
            setup_queues()
            repopulate_pool()
            join_workers()
            terminate_workers()
            maintain_pool()
            pool_inqueue_put(obj)
            pool_outqueue_get(timeout)
            worker(get, put, initializer=None, initargs=(), maxtasks=None)
        Pool(processes=None, initializer=None, initargs=(), maxtasksperchild=None,
            is_recursive=False, is_daemon=True, is_copy_tensor=True, share_method=None)
        P2PPool(processes=None, initializer=None, initargs=(), maxtasksperchild=None,
            is_recursive=False, is_daemon=True, is_copy_tensor=True, share_method=None)
        ThreadPool(processes=None, initializer=None, initargs=(), maxtasksperchild=None,
            is_recursive=False, is_daemon=True, is_copy_tensor=True, share_method=None)
        CtxPool(processes, initializer=None, initargs=(), maxtasksperchild=None,
            worker_contexts=None, is_recursive=False, is_daemon=True, is_copy_tensor=True,
            share_method=None)
        CtxThreadPool(processes, initializer=None, initargs=(), worker_contexts=None)
        CtxPoolStorage
            storage
        proxy_ctx_caller(*input_)
        """,
    "gluonnlp": """
        Parallelizable
            forward_backward(x)
        Parallel(num_workers, parallizable, serial_init=True)
            put(x)
            get()
        """,
    "torch_xla": """
        spawn(fn, args=(), nprocs=None, join=True, daemon=False, start_method="spawn")
        MpModelWrapper(model)
            to(device)
        MpSerialExecutor()
            run(fn)
        """,
    "jactorch": """
        SyncMaster(master_callback)
            register_slave(identifier)
            run_master(master_msg)
            nr_slaves
        SlavePipe(identifier, queue, result)
            identifier
            queue
            result
            run_slave(msg)
        """,
    "torch_multiprocessing": """
        spawn(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn")
        start_processes
        SpawnContext
            join(timeout=None)
        ProcessContext
        ProcessException
        ProcessRaisedException
        ProcessExitedException
        get_all_sharing_strategies()
        get_sharing_strategy()
        set_sharing_strategy(new_strategy)
        Pool(processes=None, initializer=None, initargs=(), maxtasksperchild=None, context=None)
        Queue
        SimpleQueue
        """,
}
