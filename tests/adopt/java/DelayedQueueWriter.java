import com.github.fred84.queue.DelayedEventService;
import com.github.fred84.queue.Event;
import io.lettuce.core.RedisClient;
import java.beans.ConstructorProperties;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import reactor.core.publisher.Mono;

/** Lets the real delayedQueue write its keys: events that wait, that failed, and that are ready for a handler. */
public class DelayedQueueWriter {
    public static class Reminder implements Event {
        private final String id;
        private final String text;

        @ConstructorProperties({"id", "text"})
        public Reminder(String id, String text) {
            this.id = id;
            this.text = text;
        }

        public String getId() { return id; }
        public String getText() { return text; }
    }

    public static class Check implements Event {
        private final String id;

        @ConstructorProperties({"id"})
        public Check(String id) { this.id = id; }

        public String getId() { return id; }
    }

    public static void main(String[] arguments) throws Exception {
        RedisClient client = RedisClient.create(arguments[0]);
        DelayedEventService service = DelayedEventService.delayedEventService().client(client)
                .schedulingInterval(Duration.ofMillis(100)).build();
        CountDownLatch failed = new CountDownLatch(2);
        service.addHandler(Reminder.class, event -> {
            if (event.getText().startsWith("fine")) return Mono.just(true);
            failed.countDown();
            return Mono.just(false);
        }, 1);
        for (int number = 1; number <= 3; number++) {
            service.enqueueWithDelayNonBlocking(new Reminder("done-" + number, "fine"), Duration.ZERO).block();
            service.enqueueWithDelayNonBlocking(new Reminder("later-" + number, "sp\u00e4ter"), Duration.ofDays(3650 + number)).block();
        }
        service.enqueueWithDelayNonBlocking(new Reminder("failed-1", "never"), Duration.ZERO).block();
        service.enqueueWithDelayNonBlocking(new Reminder("failed-2", "never"), Duration.ZERO).block();
        // Nobody handles these: they are pushed to the list of their type, and armed again.
        service.enqueueWithDelayNonBlocking(new Check("ready-1"), Duration.ZERO).block();
        service.enqueueWithDelayNonBlocking(new Check("ready-2"), Duration.ZERO).block();
        failed.await();
        while (client.connect().sync().llen("de_check") < 2) Thread.sleep(20);
        Thread.sleep(500);
        Runtime.getRuntime().halt(0);
    }
}
