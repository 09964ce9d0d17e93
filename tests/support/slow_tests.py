"""Slow tests: larger models, and further programs and sizes of kinds that a quicker test checks as well.

An ordinary run leaves them out; `--slow` runs everything. One of them that fails while all others pass is worth a quick
test of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SLOW: Mapping[str, tuple[str, ...]] = {
    "tests/cli/test_compare.py": ("test_in_a_row_of_data_parallelism_every_device_has_its_part_of_the_batch[2x4]",),
    "tests/planning/test_interruption.py": ("test_the_best_of_the_meshes_that_are_done_survives_ctrl_c",),
    "tests/torch/test_examples.py": ("test_a_pipeline_of_two_stages_begins_where_one_process_does",),
    "tests/plan/test_timeline.py": ("test_the_trace_of_a_pipeline_says_what_is_sent_and_what_waits_for_it[gpipe]",),
    "tests/planning/test_start_plan.py": (
        "test_of_all_meshes_that_of_the_start_has_a_plan_before_any_is_searched",
        "test_a_start_that_does_not_fit_says_so",
    ),
    "tests/planning/test_anytime.py": ("test_no_bound_that_is_told_meanwhile_is_above_the_proven_one",),
    "tests/cli/test_kv_cache.py": ("test_what_does_not_fit_is_called_the_cache",),
    "tests/torch/test_result_losses.py": ("test_losses_and_gradients_are_those_of_one_process[True]",),
    "tests/advice/test_advise.py": (
        "test_a_size_that_axes_do_not_divide_is_named_with_the_step_that_was_solved[transformer:layers=1,hidden=800",
        "test_a_size_that_axes_do_not_divide_is_named_with_the_step_that_was_solved[transformer:layers=2,hidden=1024,heads=8",
        "test_under_a_time_limit_of_which_enough_is_left",
        "test_a_size_that_axes_do_not_divide_is_named_with_the_step_that_was_solved[transformer:layers=1,hidden=1024,heads=25",
        "test_when_there_is_none[given2]",
    ),
    "tests/planning/test_time_limit.py": (
        "test_where_the_search_chooses_what_is_recomputed_there_is_a_plan_before_that_question[0.2]",
        "test_a_plan_that_is_said_to_be_reproducible_is_that_of_a_search_with_time[flat-2x4-60000",
        "test_stages_by_hand_share_the_time_limit",
        "test_a_plan_that_is_known_survives_ctrl_c_at_any_moment[staged-2x4",
        "test_a_plan_that_is_said_to_be_reproducible_is_that_of_a_search_with_time[staged-2x4",
        "test_a_plan_that_is_known_survives_ctrl_c_at_any_moment[flat-2x2x2x2",
        "test_a_plan_that_is_known_survives_ctrl_c_at_any_moment[staged-2x2x2x2",
        "test_a_plan_that_is_said_to_be_reproducible_is_that_of_a_search_with_time[flat-2x2x2x2",
        "test_a_plan_that_is_said_to_be_reproducible_is_that_of_a_search_with_time[staged-2x2x2x2",
    ),
    "tests/torch/test_compiled_graphs.py": ("test_inductor_compiles_between_moves",),
    "tests/torch/test_fsdp2_export.py": (
        "test_four_ranks_give_what_one_process_gives[pieces and tensor]",
        "test_four_ranks_give_what_one_process_gives[replicas]",
        "test_four_ranks_give_what_one_process_gives[norms of heads]",
    ),
    "tests/export/test_onnx_spmd.py": (
        "test_plans_at_random[gpt-2x2x2]",
        "test_large_models_are_valid[llama3_8b]",
        "test_plans_at_random[llama-2x2x2]",
        "test_plans_at_random[conv-2x2x2]",
        "test_plans_at_random[moe-2x2x2]",
    ),
    "tests/extras/peers/test_fidelity.py": (
        "test_fully_sharded_training_on_a100_is_faster_the_larger_the_model",
        "test_the_plan_chosen_with_the_formula_is_hardly_slower_at_measured_prices",
    ),
    "tests/extras/peers/test_runs.py": (
        "test_a_published_run_is_as_far_off_as_the_docs_say[gpt-530b a100 x2240",
        "test_a_published_run_is_as_far_off_as_the_docs_say[7b 8 h100-80",
        "test_a_published_run_is_as_far_off_as_the_docs_say[gpt-oss-20b mi355x",
    ),
    "tests/graph/test_choices.py": ("test_dropping_strategies_loses_nothing_at_any_multipliers[4x2]",),
    "tests/graph/test_options.py": (
        "test_a_tighter_limit_is_kept_and_costs_a_little_time",
        "test_optimizers_differ_in_state[adam-fp32]",
        "test_optimizers_differ_in_state[sgd]",
    ),
    "tests/graph/test_plans_make_sense.py": (
        "test_no_hand_written_plan_is_better[gpt2_small]",
        "test_no_hand_written_plan_is_better[gshard_moe]",
    ),
    "tests/jax/test_example.py": (
        "test_it_learns",
        "test_a_function_is_planned_and_trained",
    ),
    "tests/jax/test_function_plans.py": (
        "test_a_parallelized_function_has_the_same_value_and_gradients[scanned_gpt]",
        "test_a_parallelized_function_has_the_same_value_and_gradients[grouped_llama]",
    ),
    "tests/jax/test_simulated.py": (
        "test_the_forward_pass_sends_what_the_plan_says[gpt 4x4 Megatron]",
        "test_the_forward_pass_sends_what_the_plan_says[gpt 2x2 Megatron]",
        "test_the_forward_pass_sends_what_the_plan_says[llama tied 4x4 Megatron sequence]",
        "test_the_forward_pass_sends_what_the_plan_says[moe 4x4 solved 0.3]",
        "test_the_forward_pass_sends_what_the_plan_says[llama 4x4 Megatron]",
        "test_values_are_those_of_one_device[llama tied 4x4 Megatron sequence]",
        "test_values_are_those_of_one_device[moe 4x4 solved 0.3]",
        "test_values_are_those_of_one_device[llama 4x4 Megatron]",
        "test_gradients_are_those_of_one_device[llama 4x4 Megatron]",
    ),
    "tests/laws/test_models_executed.py": (
        "test_plans_on_three_axes[gpt]",
        "test_plans_on_three_axes[conv]",
        "test_plans_on_three_axes[llama]",
    ),
    "tests/models/test_further_tokens.py": (
        "test_plans_of_them_compute_what_the_model_does[text1]",
        "test_plans_of_them_compute_what_the_model_does[layers=2,hidden=32,heads=4,vocab=64,seq=16,batch=4,mtp=1,style=gpt]",
    ),
    "tests/models/test_models_of_today.py": (
        "test_plans_of_them_compute_what_the_model_does[text2]",
        "test_plans_of_them_compute_what_the_model_does[layers=2,hidden=32,heads=4,vocab=64,seq=16,batch=4,experts=4,ffn=48,routing=capacity",
        "test_plans_of_them_compute_what_the_model_does[text1]",
    ),
    "tests/padding/test_uneven.py": (
        "test_sizes_that_divide_stay_as_they_are",
        "test_a_batch_that_no_axis_divides_is_held_as_the_next_that_all_do",
    ),
    "tests/pipeline/test_cost_bounds.py": (
        "test_nothing_is_counted_that_a_part_does_not_hold[resnet50-none]",
        "test_no_plan_that_fits_takes_less[selective]",
        "test_no_plan_that_fits_takes_less[full]",
        "test_a_floor_for_one_run_is_one_for_all_and_for_more_in_flight[full]",
        "test_a_floor_for_one_run_is_one_for_all_and_for_more_in_flight[selective]",
        "test_memory_makes_a_difference[full]",
        "test_memory_makes_a_difference[selective]",
        "test_nothing_is_counted_that_a_part_does_not_hold[resnet50-auto]",
        "test_nothing_is_counted_that_a_part_does_not_hold[resnet50-full]",
    ),
    "tests/pipeline/test_pipeline.py": (
        "test_under_a_time_limit_equal_stages_are_the_answer_where_costs_of_runs_come_too_late[2]",
        "test_the_best_pipeline_is_that_of_enumeration[8-7340032]",
        "test_the_best_pipeline_is_that_of_enumeration[8-1048576]",
        "test_the_best_pipeline_is_that_of_enumeration[2-None]",
    ),
    "tests/pipeline/test_recomputed_stages.py": ("test_stages_recompute_what_they_need_to",),
    "tests/plan/test_all_runs.py": (
        "test_all_of_a_transformer_runs[v100",
        "test_all_of_a_transformer_runs[generic-training-full-2]",
    ),
    "tests/plan/test_buckets.py": ("test_buckets_make_no_plan_slower",),
    "tests/planning/test_monotone.py": (
        "test_a_further_constraint_never_makes_a_plan_faster[long]",
        "test_near_a_limit_that_binds_equal_layers_are_no_faster_with_a_pin_or_less_room",
        "test_state_apart_from_its_weights_never_makes_a_plan_slower[long]",
        "test_with_state_apart_zero_1_is_a_candidate_as_it_is_a_row_of_compare",
        "test_a_plan_is_never_slower_than_a_recipe[wide]",
        "test_no_limit_on_memory_never_makes_a_plan_slower_where_gathers_are_exposed",
        "test_more_effort_never_makes_a_plan_slower[wide]",
        "test_a_further_constraint_never_makes_a_plan_faster[wide]",
        "test_state_apart_from_its_weights_never_makes_a_plan_slower[wide]",
    ),
    "tests/planning/test_recomputed_plans.py": (
        "test_no_flag_is_faster[0.8]",
        "test_no_flag_is_faster[0.5]",
    ),
    "tests/planning/test_rematerialisation.py": ("test_the_objective_is_the_least_of_every_choice_tried_one_by_one",),
    "tests/planning/test_runtimes.py": (
        "test_an_axis_of_one_device_is_no_axis_of_a_runtime",
        "test_a_finer_mesh_over_the_same_links_is_no_slower[jax]",
        "test_a_format_that_says_more_is_no_slower",
        "test_what_is_planned_for_a_format_is_exported_to_it[qwen-training-targets4]",
        "test_what_is_planned_for_a_format_is_exported_to_it[vision-training-targets1]",
        "test_what_is_planned_for_a_format_is_exported_to_it[llama-training-targets0]",
        "test_what_is_planned_for_a_format_is_exported_to_it[bert-training-targets3]",
        "test_what_is_planned_for_a_format_is_exported_to_it[mixtral-training-targets6]",
        "test_a_finer_mesh_over_the_same_links_is_no_slower[torchtitan]",
        "test_where_everything_is_said_no_other_format_is_faster",
    ),
    "tests/planning/test_shallower.py": (
        "test_progress_tells_no_step_and_no_bound_of_fewer_layers",
        "test_its_plan_is_about_as_short_as_that_of_a_search_of_the_whole_model[2x2-0.95]",
        "test_its_plan_is_about_as_short_as_that_of_a_search_of_the_whole_model[machine0",
    ),
    "tests/planning/test_shortest_step_recomputed.py": (
        "test_auto_is_as_near_to_the_best_of_everything_there_is_as_it_says[three]",
        "test_auto_is_as_near_to_the_best_of_everything_there_is_as_it_says[large weights]",
    ),
    "tests/program/test_models.py": (
        "test_models_of_this_repository[resnet50-forms2]",
        "test_on_three_axes",
        "test_models_of_this_repository[gpt2_small-forms0]",
        "test_models_of_this_repository[llama3_8b-forms1]",
        "test_models_of_this_repository[gshard_moe-forms3]",
        "test_networks_of_the_onnx_package[light_squeezenet]",
    ),
    "tests/program/test_shrink.py": (
        "test_large_models[llama3_8b-4x4-options1-]",
        "test_large_models[llama3_8b-2x2x2-options2-Megatron]",
        "test_large_models[gshard_moe-2x2-options4-]",
    ),
    "tests/program/test_shrink_stages.py": (
        "test_pipelines_are_verified_by_their_scaled_down_model[gpt2_small-1f1b]",
        "test_pipelines_are_verified_by_their_scaled_down_model[llama3_8b-gpipe]",
    ),
    "tests/study/test_evaluate.py": ("test_a_plan_is_itself[training-2x4-pins4]",),
    "tests/cli/test_streams.py": ("test_characters_that_there_are_none_of_are_written_otherwise[latin-1]",),
    "tests/cli/test_progress_on_a_terminal.py": ("test_what_lasts_says_what_it_does_in_one_line[verb2",),
    "tests/study/test_price_many_axes.py": (
        "test_state_is_what_megatron_counts[3-5-options1]",
        "test_state_is_what_megatron_counts[3-4-options0]",
        "test_state_is_what_megatron_counts[1-5-options1]",
        "test_state_is_what_megatron_counts[1-6-options2]",
        "test_state_is_what_megatron_counts[3-6-options2]",
        "test_few_axes_cost_the_same_among_the_layouts_left_open[transformer:layers=1,hidden=256",
        "test_twice_the_context_ranks_halve_activations_and_work",
    ),
    "tests/study/test_sensitivity.py": (
        "test_ends_of_the_slack_are_around_the_profile",
        "test_the_command_says_it",
    ),
    "tests/study/test_sweep.py": ("test_what_is_recomputed_is_chosen_point_by_point",),
    "tests/study/test_trainer_step.py": (
        "test_groups_of_several_devices_of_several_machines_reduce_slowly_where_it_is_said[ways2-False]",
        "test_groups_of_several_devices_of_several_machines_reduce_slowly_where_it_is_said[ways0-True]",
        "test_no_plan_depends_on_what_trainers_add",
    ),
    "tests/test_committed_plans.py": (
        "test_solving_again_gives_the_committed_plan[llama3_8b.4x8.plan.json]",
        "test_solving_again_gives_the_committed_plan[gpt2_small.4x4.plan.json]",
    ),
    "tests/test_tutorials.py": (
        "test_a_tutorial_works_as_it_stands[ml-engineer]",
        "test_a_tutorial_works_as_it_stands[platform-engineer]",
        "test_a_tutorial_works_as_it_stands[researcher]",
    ),
    "tests/torch/test_autograd_functions.py": (
        "test_it_trains_as_one_process_and_sends_what_the_plan_says[Megatron + sequence]",
    ),
    "tests/torch/test_buffers.py": (
        "test_buffers_are_written_back[cnn-{'seed': 3}-eager]",
        "test_buffers_are_written_back[cnn-{'seed': 2}-exported]",
        "test_buffers_are_written_back[cnn-{'recipe': 'ZeRO-3'}-eager]",
        "test_buffers_are_written_back[cnn-{'recipe': 'data parallel'}-exported]",
        "test_buffers_are_written_back[cnn-{'seed': 1}-eager]",
        "test_buffers_are_written_back[averages-{'recipe': 'ZeRO-3'}-eager]",
    ),
    "tests/torch/test_families.py": (
        "test_trains_as_one_process[residual-seed 2-exported]",
        "test_trains_as_one_process[recurrent-seed 2-exported]",
        "test_trains_as_one_process[assembled-seed 1-eager]",
        "test_trains_as_one_process[upsampling-seed 1-eager]",
        "test_trains_as_one_process[encoder-ZeRO-3-exported]",
        "test_trains_as_one_process[encoder-Megatron-eager]",
        "test_trains_as_one_process[encoder-seed 1-eager]",
        "test_trains_as_one_process[attentive-ZeRO-3-exported]",
        "test_trains_as_one_process[attentive-Megatron-eager]",
        "test_trains_as_one_process[attentive-seed 2-exported]",
        "test_trains_as_one_process[residual-ZeRO-3-exported]",
        "test_trains_as_one_process[residual-Megatron-eager]",
        "test_trains_as_one_process[residual-seed 1-eager]",
        "test_trains_as_one_process[upsampling-ZeRO-3-exported]",
        "test_trains_as_one_process[upsampling-Megatron-eager]",
        "test_trains_as_one_process[upsampling-seed 2-exported]",
        "test_trains_as_one_process[recurrent-ZeRO-3-exported]",
        "test_trains_as_one_process[recurrent-Megatron-eager]",
        "test_trains_as_one_process[assembled-ZeRO-3-exported]",
        "test_trains_as_one_process[assembled-Megatron-eager]",
        "test_trains_as_one_process[assembled-seed 2-exported]",
        "test_blocks_may_be_recomputed[Megatron]",
    ),
    "tests/torch/test_fused_weights.py": (
        "test_they_are_trained_in_parts[eager-unequal parts]",
        "test_training_goes_on_whatever_the_parts[several axes-unequal parts]",
        "test_training_goes_on_whatever_the_parts[unequal parts-unequal parts]",
        "test_training_goes_on_whatever_the_parts[unequal parts-whole]",
    ),
    "tests/torch/test_gradient_accumulation.py": (
        "test_gradients_add_up_and_are_reduced_as_often_as_planned[gpt-Megatron + sequence-exported]",
        "test_gradients_add_up_and_are_reduced_as_often_as_planned[moe-Megatron-eager]",
        "test_gradients_add_up_and_are_reduced_as_often_as_planned[gpt-data parallel-eager]",
        "test_shapes_of_a_microbatch_are_those_of_the_model_exported_with_its_rows[tiny_moe]",
    ),
    "tests/torch/test_gradient_bucketing.py": (
        "test_it_trains_as_one_process_and_sends_whole_buckets[data parallel-options1-exported]",
        "test_it_trains_as_one_process_and_sends_whole_buckets[ZeRO-1-options3-eager]",
        "test_what_a_reader_takes_as_a_part_is_in_buckets_too[2-D-exported]",
        "test_what_a_reader_takes_as_a_part_is_in_buckets_too[drawn-eager]",
        "test_a_part_of_a_weight_that_the_optimizer_keeps_otherwise[eager]",
    ),
    "tests/torch/test_graphs.py": (
        "test_views_that_are_changed_and_norms_of_split_dims[how1]",
        "test_views_that_are_changed_and_norms_of_split_dims[how2]",
        "test_gradients_are_those_that_the_program_says[own function]",
        "test_gradients_are_those_that_the_program_says[checkpoint]",
        "test_gradients_are_those_that_the_program_says[buffers]",
        "test_gradients_are_those_that_the_program_says[no gradients]",
        "test_gradients_are_those_that_the_program_says[mapped]",
        "test_gradients_are_those_that_the_program_says[number]",
        "test_a_graph_does_what_the_program_does_under_the_same_plan[hooked weight]",
    ),
    "tests/torch/test_megatron_bytes.py": ("test_forward_pass_of_a_gpt[4x4",),
    "tests/torch/test_orders.py": ("test_tables_that_the_program_makes_are_made_in_any_order[2-",),
    "tests/torch/test_onnx_export.py": (
        "test_exported_graphs_plan_their_own_models[ZeRO-3-gpt]",
        "test_exported_graphs_plan_their_own_models[Megatron + sequence-gpt]",
    ),
    "tests/torch/test_pipelines.py": (
        "test_trains_as_one_process_and_sends_what_its_stages_say[gpipe]",
        "test_trains_as_one_process_and_sends_what_its_stages_say[four stages of one device]",
        "test_trains_as_one_process_and_sends_what_its_stages_say[more microbatches than stages]",
        "test_trains_as_one_process_and_sends_what_its_stages_say[Megatron inside]",
        "test_stages_of_unequal_numbers_of_devices_train_as_one_process[gpt packed 2+1+1]",
        "test_stages_of_unequal_numbers_of_devices_train_as_one_process[llama 2+1+1]",
    ),
    "tests/torch/test_scheduled_steps.py": (
        "test_other_models_and_meshes[four machines]",
        "test_other_models_and_meshes[one machine]",
        "test_other_models_and_meshes[eight layers]",
    ),
    "tests/torch/test_timeline_comparison.py": ("test_every_move_and_phase_is_measured[eager]",),
    "tests/torch/test_training.py": (
        "test_any_plan_at_all_trains_right[moe-4]",
        "test_trains_as_one_process_and_sends_what_the_plan_says[gpt-Megatron]",
        "test_trains_as_one_process_and_sends_what_the_plan_says[gpt-Megatron + sequence]",
        "test_trains_as_one_process_and_sends_what_the_plan_says[gpt-Megatron by hand]",
        "test_trains_as_one_process_and_sends_what_the_plan_says[gpt tied-ZeRO-3]",
        "test_trains_as_one_process_and_sends_what_the_plan_says[gpt tied-Megatron by hand]",
        "test_trains_as_one_process_and_sends_what_the_plan_says[gpt packed-ZeRO-3]",
        "test_trains_as_one_process_and_sends_what_the_plan_says[gpt packed-Megatron by hand]",
        "test_trains_as_one_process_and_sends_what_the_plan_says[llama-ZeRO-3]",
        "test_trains_as_one_process_and_sends_what_the_plan_says[llama-Megatron by hand]",
        "test_trains_as_one_process_and_sends_what_the_plan_says[llama tied-Megatron by hand]",
        "test_trains_as_one_process_and_sends_what_the_plan_says[llama tied-Megatron + sequence by hand]",
        "test_trains_as_one_process_and_sends_what_the_plan_says[moe-Megatron by hand]",
        "test_trains_as_one_process_and_sends_what_the_plan_says[moe-ZeRO-3]",
        "test_trains_as_one_process_and_sends_what_the_plan_says[gpt-Megatron + sequence by hand]",
        "test_a_graph_with_the_plan_written_into_it_does_the_same[llama tied-ZeRO-3]",
        "test_a_graph_with_the_plan_written_into_it_does_the_same[moe-Megatron by hand]",
        "test_fused_kernels_stand_for_the_operators_of_the_plan[llama-Megatron + sequence by hand-exported]",
        "test_ids_that_are_gathered_are_not_kept_but_gathered_again[eager]",
        "test_a_kernel_that_repeats_keys_moves_them_on_the_way_as_planned[eager]",
        "test_any_plan_at_all_trains_right[gpt tied-2]",
        "test_any_plan_at_all_trains_right[gpt packed-1]",
        "test_any_plan_at_all_trains_right[llama-3]",
        "test_blocks_may_be_recomputed_in_backward[ZeRO-3]",
        "test_what_follows_other_steps_than_the_plans_is_known_by_its_weights[ZeRO-3]",
        "test_a_graph_is_compiled_between_its_moves",
        "test_compilation_changes_nothing[model]",
    ),
    "tests/torch/test_rules.py": ("test_function_on_two_axes",),
    "tests/torch/test_training_loops.py": (
        "test_loops_train_as_in_one_process[llama tied-ZeRO-3-clipping]",
        "test_loops_train_as_in_one_process[llama tied-ZeRO-3-accumulation]",
        "test_loops_train_as_in_one_process[llama tied-ZeRO-3-fused optimizer]",
        "test_loops_train_as_in_one_process[llama tied-ZeRO-3-scaler]",
        "test_loops_train_as_in_one_process[llama tied-ZeRO-3-overflow]",
        "test_loops_train_as_in_one_process[llama tied-ZeRO-3-inference mode]",
        "test_loops_train_as_in_one_process[llama tied-ZeRO-3-copy]",
        "test_autocast_rounds_where_one_process_does[llama tied-ZeRO-3]",
        "test_checkpoints_are_read_on_another_mesh_and_whole[llama tied-ZeRO-3-Megatron by hand-2x2]",
    ),
    "tests/torch/test_zero1.py": ("test_trains_as_one_process_and_sends_what_the_plan_says[eager]",),
    "tests/planning/test_finer.py": (
        "test_a_finer_mesh_over_the_same_links_is_never_slower[machine0=2,machine1=2",
        "test_a_finer_mesh_over_the_same_links_is_never_slower[machine=4,gpu0=2,gpu1=2]",
        "test_axes_of_one_device_change_neither_plan_nor_proof[machine=4,gpu0=1,gpu1=2,gpu2=1,gpu3=2]",
    ),
    "tests/cli/test_explain.py": ("test_alternatives_of_a_plan_for_a_format_are_what_it_can_say[megatron]",),
    "tests/laws/test_transitions.py": ("test_exactly_the_possible_collectives_are_enumerated[(2, 2, 4)-(16,)]",),
    "tests/pipeline/test_stage_planner.py": ("test_equal_stages_are_planned_once_and_alike[full]",),
    "tests/rules/test_node_cases.py": (
        "test_every_strategy_gives_what_the_whole_gives[test_nllloss_NCd1d2d3d4d5_none_no_weight]",
    ),
    "tests/planning/test_equal_layers.py": (
        "test_under_a_limit_on_memory_too",
        "test_a_model_without_repeated_layers_is_planned_as_ever",
    ),
    "tests/laws/test_schedule.py": ("test_looser_memory_is_never_slower",),
    "tests/torch/test_attention.py": (
        "test_forms_are_all_the_same[scaled-inside-exported]",
        "test_forms_are_all_the_same[allowing mask-inside-eager]",
    ),
    "tests/torch/test_by_hand.py": ("test_they_are_those_of_one_process[{'seed': 1}]",),
}
"""By file, the beginnings of the tests' names."""


def is_slow(nodeid: str) -> bool:
    """Whether a test is listed."""
    file, _, name = nodeid.partition("::")
    return name.startswith(SLOW.get(file, ()))


def unknown(nodeids: Iterable[str]) -> list[str]:
    """What is listed and begins none of the tests of its file; files of which there is no test are not judged."""
    names: dict[str, list[str]] = {}
    for nodeid in nodeids:
        file, _, name = nodeid.partition("::")
        names.setdefault(file, []).append(name)
    return [
        f"{file}::{start}"
        for file, starts in SLOW.items()
        for start in starts
        if file in names and not any(name.startswith(start) for name in names[file])
    ]
