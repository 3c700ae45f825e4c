"""Collective: operations on tensors that all members of a group do together."""

from __future__ import annotations

from pparallel.interfaces.collective.multigpu import MultiGpuForms
from pparallel.interfaces.collective.objects import ObjectForms


class Collective(ObjectForms, MultiGpuForms):
    """A group of members that send one another tensors and combine them.

    Members are called by their global rank everywhere, ``src`` and ``dst`` too, as in torch.
    Tensors may have any dtype, complex ones too, and any strides; those of one operation have the
    same shape and dtype in all members, but for lists of several shapes. Outputs are written in
    place, and gradients are not recorded. With ``async_op=True`` an operation returns a
    :class:`Work` at once and its tensors must not be touched until ``wait()`` returns; else it
    returns when this member's part is done, which may take until all others have begun it. On a
    GPU a backend may return when its part is in order on the GPU's current stream: what is
    computed there comes after it, and so does a copy to the CPU. All members of a group begin the
    same operations in the same order, from one thread at a time; messages may be sent and received
    by any thread.

    A backend fills in :meth:`open`, :meth:`close`, :meth:`isend`, :meth:`irecv`,
    :meth:`new_group`, :attr:`rank` and :meth:`size`, and, for groups of less than all members,
    :attr:`ranks`. The rest stands on these. What a backend can do faster it overrides in a class
    of its own derived from :class:`Operation`, which :meth:`operation` returns; arguments are
    checked before. How operations are carried out, beside one another or one at a time, is for
    :meth:`carry_out` to say.

    Guarantees:
        - Every operation gives what its name says, with any number of members, on any dtype and
          any strides, and changes no other tensor (``CollectiveSuite.test_operations``,
          ``test_multigpu_forms``, ``test_strides``, ``test_views``, ``test_unusual_forms``,
          ``test_large_tensors``).
        - A mean divides first: each value by the number of members, and then they are added, so
          that it overflows only where it does not fit its dtype; see :class:`ReduceOp`
          (``CollectiveSuite.test_means_of_large_values``).
        - Tensors of any dtype can be moved; a reduction that torch has not for their dtype raises
          ``ValueError`` before anything is sent, and the group goes on
          (``CollectiveSuite.test_unusual_dtypes``).
        - Tensors without elements in memory, as sparse ones, and tensors to fill whose elements
          share memory, as expanded ones, raise ``ValueError`` before anything is sent
          (``CollectiveSuite.test_tensors_that_cannot_be_sent``).
        - Tensors to fill that share memory with one another raise ``ValueError`` before anything
          is sent (``CollectiveSuite.test_outputs_that_share_memory``); an input that shares memory
          with one is sent as it was when the operation began
          (``CollectiveSuite.test_inputs_that_share_memory``).
        - Lists of :meth:`all_gather`, :meth:`reduce_scatter` and :meth:`all_to_all` may have
          several shapes; those of :meth:`gather` and :meth:`scatter` have one, and all of them one
          dtype, or the member that gives the list gets a ``ValueError``
          (``CollectiveSuite.test_tensors_of_several_shapes``).
        - What arrives is the receiver's own (``CollectiveSuite.test_what_arrives_is_its_own``,
          ``test_objects``).
        - Messages from one member to another with one tag arrive in the order sent
          (``CollectiveSuite.test_messages``, ``test_order_of_messages``); those of other tags and
          other groups are never mixed up with them (``CollectiveSuite.test_tags_are_not_mixed``,
          ``test_groups_are_not_mixed``).
        - Sending waits for nobody, and what was sent may be changed when its ``wait()`` has
          returned (``CollectiveSuite.test_sending_waits_for_nobody``,
          ``test_what_was_sent_may_be_changed``).
        - All members get bit for bit the same from :meth:`all_reduce`
          (``CollectiveSuite.test_all_reduce_is_the_same_everywhere``).
        - Nobody leaves :meth:`barrier` before all have entered it
          (``CollectiveSuite.test_barrier``).
        - Operations begun with ``async_op`` may overlap, with others and with messages
          (``CollectiveSuite.test_operations_overlap``); ``wait()`` returns when its own is done
          (``CollectiveSuite.test_a_handle_is_not_done_before_its_operation``).
        - A group of some members stands for itself, and ends without the one that it was made of
          (``CollectiveSuite.test_groups``, ``test_a_group_that_was_destroyed``).
        - What has another shape or dtype than its receiver expects raises ``ValueError`` there, or
          in all members (``CollectiveSuite.test_what_does_not_fit``,
          ``test_an_operation_that_does_not_fit``); arguments that cannot be meant are refused
          before anything is sent (``CollectiveSuite.test_wrong_arguments``).
        - An object that its member cannot serialise raises ``SerializationError`` in every member
          that waits for it (``CollectiveSuite.test_an_object_that_cannot_be_sent``).
        - A member that is lost raises ``PeerLostError`` in those that wait for it
          (``CollectiveSuite.test_a_lost_member``); :meth:`close` wakes with ``ClosedError``
          whoever waits (``CollectiveSuite.test_close_wakes``), and the end of the job wakes all
          (``CollectiveSuite.test_nothing_waits_after_the_end``).
        - What waits longer than the config's ``timeout`` raises ``CallTimeoutError``
          (``CollectiveSuite.test_timeout``); after a shorter time-out of its own ``wait()`` may be
          called again (``CollectiveSuite.test_wait_with_a_timeout``).

    Features:
        - ``any_source``: :meth:`irecv` and :meth:`recv` take ``src=None``, until nobody is left
          (``CollectiveSuite.test_any_source``, ``test_nobody_is_left``); without it they raise
          ``ValueError`` (``CollectiveSuite.test_any_source_is_refused``).
        - ``tags``: messages are told apart by ``tag``
          (``CollectiveSuite.test_tags_are_not_mixed``), so that several threads can have their own
          (``CollectiveSuite.test_many_threads``); without it, users' tags must be 0
          (``CollectiveSuite.test_tags_are_refused``).
        - ``cuda``: tensors may be on a GPU (``CollectiveSuite.test_tensors_on_a_gpu``).
    """

    def destroy(self) -> None:
        """Close the group."""
        self.close()
