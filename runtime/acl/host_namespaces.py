"""`acl.rt` and `acl.mdl` of the host device: which part implements which pyACL name."""

from __future__ import annotations

from .constants import RunMode
from .host_context import Contexts
from .host_copy import Copies
from .host_dataset import Datasets
from .host_event import Events
from .host_execution import Executions
from .host_gears import GearCalls
from .host_memory import Memory
from .host_model import Models
from .host_model_desc import ModelDescs
from .host_stream import Streams


class HostRt:
    """`acl.rt`: the runtime calls."""

    def __init__(
        self,
        contexts: Contexts,
        streams: Streams,
        events: Events,
        memory: Memory,
        copies: Copies,
    ) -> None:
        self.set_device = contexts.set_device
        self.reset_device = contexts.reset_device
        self.reset_device_force = contexts.reset_device_force
        self.get_device = contexts.get_device
        self.get_device_count = contexts.get_device_count
        self.create_context = contexts.create_context
        self.get_context = contexts.get_context
        self.set_context = contexts.set_context
        self.destroy_context = contexts.destroy_context
        self.create_stream = streams.create_stream
        self.create_stream_with_config = streams.create_stream_with_config
        self.destroy_stream = streams.destroy_stream
        self.destroy_stream_force = streams.destroy_stream_force
        self.stream_abort = streams.stream_abort
        self.synchronize_stream = streams.synchronize_stream
        self.synchronize_stream_with_timeout = streams.synchronize_stream_with_timeout
        self.synchronize_device = streams.synchronize_device
        self.stream_query = streams.stream_query
        self.get_stream_available_num = streams.get_stream_available_num
        self.create_event = events.create_event
        self.create_event_with_flag = events.create_event_with_flag
        self.create_event_ex_with_flag = events.create_event_ex_with_flag
        self.destroy_event = events.destroy_event
        self.record_event = events.record_event
        self.reset_event = events.reset_event
        self.stream_wait_event = events.stream_wait_event
        self.synchronize_event = events.synchronize_event
        self.synchronize_event_with_timeout = events.synchronize_event_with_timeout
        self.query_event = events.query_event
        self.query_event_status = events.query_event_status
        self.event_elapsed_time = events.event_elapsed_time
        self.malloc = memory.malloc
        self.malloc_align32 = memory.malloc
        self.malloc_cached = memory.malloc
        self.malloc_with_cfg = memory.malloc_with_cfg
        self.free = memory.free
        self.malloc_host = memory.malloc_host
        self.free_host = memory.free_host
        self.get_mem_info = memory.get_mem_info
        self.mem_flush = memory.mem_flush
        self.mem_invalidate = memory.mem_flush
        self.memcpy = copies.memcpy
        self.memcpy_async = copies.memcpy_async
        self.memcpy2d = copies.memcpy2d
        self.memcpy2d_async = copies.memcpy2d_async
        self.memset = copies.memset
        self.memset_async = copies.memset_async

    def get_run_mode(self) -> tuple[int, int]:
        """Return (1: the process runs on the host, ret)."""
        return int(RunMode.HOST), 0


class HostMdl:
    """`acl.mdl`: the model calls."""

    def __init__(
        self,
        models: Models,
        descs: ModelDescs,
        datasets: Datasets,
        executions: Executions,
        gears: GearCalls,
    ) -> None:
        self.load_from_file = models.load_from_file
        self.load_from_file_with_mem = models.load_from_file_with_mem
        self.load_from_mem = models.load_from_mem
        self.create_config_handle = models.create_config_handle
        self.set_config_opt = models.set_config_opt
        self.load_with_config = models.load_with_config
        self.destroy_config_handle = models.destroy_config_handle
        self.unload = models.unload
        self.query_size = descs.query_size
        self.create_desc = descs.create_desc
        self.destroy_desc = descs.destroy_desc
        self.get_desc = descs.get_desc
        self.get_desc_from_file = descs.get_desc_from_file
        self.get_num_inputs = descs.get_num_inputs
        self.get_num_outputs = descs.get_num_outputs
        self.get_input_size_by_index = descs.get_input_size_by_index
        self.get_output_size_by_index = descs.get_output_size_by_index
        self.get_input_dims = descs.get_input_dims
        self.get_input_dims_v2 = descs.get_input_dims
        self.get_output_dims = descs.get_output_dims
        self.get_cur_output_dims = descs.get_cur_output_dims
        self.get_input_dims_range = descs.get_input_dims_range
        self.get_input_data_type = descs.get_input_data_type
        self.get_output_data_type = descs.get_output_data_type
        self.get_input_format = descs.get_input_format
        self.get_output_format = descs.get_output_format
        self.get_input_name_by_index = descs.get_input_name_by_index
        self.get_output_name_by_index = descs.get_output_name_by_index
        self.get_input_index_by_name = descs.get_input_index_by_name
        self.get_output_index_by_name = descs.get_output_index_by_name
        self.get_tensor_real_name = descs.get_tensor_real_name
        self.get_dynamic_batch = descs.get_dynamic_batch
        self.get_input_dynamic_gear_count = descs.get_input_dynamic_gear_count
        self.get_input_dynamic_dims = descs.get_input_dynamic_dims
        self.create_dataset = datasets.create_dataset
        self.destroy_dataset = datasets.destroy_dataset
        self.add_dataset_buffer = datasets.add_dataset_buffer
        self.get_dataset_buffer = datasets.get_dataset_buffer
        self.get_dataset_num_buffers = datasets.get_dataset_num_buffers
        self.set_dataset_tensor_desc = datasets.set_dataset_tensor_desc
        self.get_dataset_tensor_desc = datasets.get_dataset_tensor_desc
        self.set_dynamic_batch_size = gears.set_dynamic_batch_size
        self.set_input_dynamic_dims = gears.set_input_dynamic_dims
        self.execute = executions.execute
        self.execute_async = executions.execute_async
        self.execute_v2 = executions.execute_v2
        self.create_exec_config_handle = executions.create_exec_config_handle
        self.set_exec_config_opt = executions.set_exec_config_opt
        self.destroy_exec_config_handle = executions.destroy_exec_config_handle
