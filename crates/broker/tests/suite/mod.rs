//! What holds of a broker on every database. Each test is told with a fresh world.

pub(crate) mod accepting;
pub(crate) mod http;
pub(crate) mod kit;
pub(crate) mod socket;
pub(crate) mod streams;
pub(crate) mod upkeep;
pub(crate) mod web;
pub(crate) mod webhooks;

/// Runs the suite with this way to make a database.
#[macro_export]
macro_rules! on_every_database {
    ($database:path) => {
        use semel_broker::Settings;
        use suite::kit::World;
        use suite::{accepting, http, socket, streams, upkeep, webhooks};

        $crate::claims! { $database;
            accepting: fifty_parallel_first_sends_are_one_message, of_two_bodies_under_one_id_one_wins,
                another_members_use_of_an_id_shows_nothing, a_known_id_is_one_statement_and_no_limiter,
                each_insert_that_fails_leaves_nothing_and_the_id_free,
                a_commit_whose_answer_is_lost_is_told_by_the_retry, what_was_refused_may_be_sent_again_with_its_id,
                late_destinations_have_their_grace, a_full_mesh_takes_no_more,
                a_retry_of_what_is_known_is_told_though_it_is_too_large_by_now;
            http: a_publish_is_answered_as_promised, refusals_have_their_statuses, outsiders_learn_nothing,
                several_messages_have_an_answer_each, pages_mentions_search_and_moderation,
                management_is_for_operators_and_owners,
                what_operators_and_owners_do_stands_in_the_trail_by_their_names, lists_are_paged_by_name, seals_are_as_the_outbox_reads_them, seals_of_unknown_ids_are_limited,
                what_was_larger_than_is_taken_now_is_read, a_message_that_commits_late_is_below_no_cursor,
                pages_say_what_is_gone_between_their_messages, what_is_not_said_of_a_member_stays,
                verified_identities_are_members_by_tenant_and_principal,
                a_stream_ends_with_the_credential_that_opened_it;
            streams: a_reader_gets_history_then_live_and_resumes, several_lines_are_one_stream_that_resumes,
                a_gap_that_was_not_handed_out_is_said_to_whoever_resumes, a_cursor_that_is_lost_leads_to_a_gap, a_stream_over_messages_that_are_gone_says_so_and_rests, consumers_have_their_own_cursors_and_the_newest_stream_counts,
                a_revoked_member_loses_its_streams_within_a_second,
                what_was_published_before_the_end_of_a_subscription_is_still_read,
                a_stop_ends_streams_at_a_cursor_that_resumes, nothing_is_pushed_that_is_not_committed,
                a_stream_is_exact_while_its_subscription_changes_at_another_broker, silence_is_broken_by_heart_beats, a_store_that_goes_back_ends_its_streams, a_new_epoch_ends_streams,
                readers_hear_of_what_is_hidden, what_was_hidden_while_a_reader_was_slow_is_told, a_slow_reader_reads_the_history_at_its_own_pace;
            upkeep: any_single_row_that_is_removed_is_found, rows_that_the_release_before_writes_are_counted,
                a_sweep_takes_ids_and_messages_together,
                what_follows_the_commits_is_made_again_and_never_consulted, a_webhook_does_not_reach_this_machine;
            webhooks: a_webhook_that_is_made_again_for_another_topic_leaves_nothing_behind;
            socket: a_socket_has_the_same_events;
        }

        async fn world(settings: Settings) -> World {
            World::new($database().await, settings).await
        }

        #[tokio::test(flavor = "multi_thread")]
        async fn of_a_publish_and_a_seal_exactly_one_wins() {
            accepting::of_a_publish_and_a_seal_exactly_one_wins(world(Settings::default()).await, 1000).await;
        }

        #[tokio::test(flavor = "multi_thread")]
        async fn a_saturated_budget_does_not_refuse_the_retry_of_a_committed_id() {
            let world = world(accepting::three_a_minute()).await;
            accepting::a_saturated_budget_does_not_refuse_the_retry_of_a_committed_id(world).await;
        }

        #[tokio::test(flavor = "multi_thread")]
        async fn ten_sends_of_one_id_cost_one_unit() {
            accepting::ten_sends_of_one_id_cost_one_unit(world(accepting::three_a_minute()).await).await;
        }

        #[tokio::test(flavor = "multi_thread")]
        async fn the_order_of_numbers_is_the_order_of_commits() {
            accepting::the_order_of_numbers_is_the_order_of_commits(world(Settings::default()).await, 50).await;
        }

        #[tokio::test(flavor = "multi_thread")]
        async fn subscribing_in_the_middle_is_exact() {
            accepting::subscribing_in_the_middle_is_exact(world(Settings::default()).await, 25).await;
        }

        #[tokio::test(flavor = "multi_thread")]
        async fn readers_that_come_while_others_publish_miss_nothing() {
            streams::readers_that_come_while_others_publish_miss_nothing(world(Settings::default()).await, 200).await;
        }

        #[tokio::test(flavor = "multi_thread")]
        async fn bodies_share_one_room_and_strangers_have_none() {
            http::bodies_share_one_room_and_strangers_have_none(world(http::little_room()).await).await;
        }

        $crate::with_loopback! {
            upkeep: webhooks_are_sent_in_order_signed_and_again_when_they_fail, what_a_webhook_refuses_is_dead_until_it_is_requeued,
                a_worker_that_dies_is_followed_by_another;
            webhooks: webhooks_that_wait_hold_up_no_others, a_webhook_that_was_changed_is_sent_to_as_it_is_now,
                nothing_is_sent_for_a_mesh_that_was_removed,
                a_delivery_that_is_requeued_after_days_is_tried_again_and_again;
        }
    };
}

/// Tests that need nothing but a world.
#[macro_export]
macro_rules! claims {
    ($database:path; $($part:ident: $($claim:ident),+;)+) => {
        $($(
            #[tokio::test(flavor = "multi_thread")]
            async fn $claim() {
                $part::$claim(world(Settings::default()).await).await;
            }
        )+)+
    };
}

/// Tests whose webhooks may lead to this machine.
#[macro_export]
macro_rules! with_loopback {
    ($($part:ident: $($claim:ident),+;)+) => {
        $($(
            #[tokio::test(flavor = "multi_thread")]
            async fn $claim() {
                $part::$claim(world(upkeep::with_loopback()).await).await;
            }
        )+)+
    };
}
